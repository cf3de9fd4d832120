from . import page as page
from .compare import write_comparison as write_comparison
from .page import write_page as write_page
