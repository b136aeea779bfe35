"""The original study repeated: four bases from crawl to figures, the original representation compared with ours.

``python -m scripts.reproduce`` runs it offline, on families of small real models;
``python -m scripts.reproduce --live --limit 200`` on the Hub.
"""
