"""Question 3: how do output embeddings encode token probability?

Source: Cho et al., "Understanding Token Probability Encoding in Output Embeddings", COLING 2025.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
