from . import distributed as distributed, moments as moments, passes as passes
from .observers import Observer as Observer, observe as observe
