from . import distributed as distributed, execution as execution, moments as moments
from .observers import Observer as Observer
from .reading import observe as observe
