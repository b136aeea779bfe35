"""The models of an atlas: opening the atlas, finding models, and the facts about them."""
