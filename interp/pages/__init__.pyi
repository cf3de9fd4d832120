from .compare import write_comparison as write_comparison
from .page import section as section, write_page as write_page
