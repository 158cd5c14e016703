"""Hugging Face models on the card: trained weights to run them with."""
