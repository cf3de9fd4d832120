from .observers import Observer as Observer, observe as observe
