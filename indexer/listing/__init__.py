"""What the Hub lists for a base: questions, answers judged row by row, and the listing kept on disk."""
