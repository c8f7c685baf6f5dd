"""Chats with tools and with JSON, made from lists of words by seeded draws."""
