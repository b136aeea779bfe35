"""What a sample of rows costs, and what it keeps of a full read: ``python -m studies.sampling``."""
