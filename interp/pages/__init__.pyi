from .analyses import section as section
from .compare import write_comparison as write_comparison
from .page import write_page as write_page
