"""Question 1: what do the biases of the prediction head do to word frequency?

Source: Kobayashi, Kuribayashi, Yokoi, Inui, "Transformer Language Models Handle Word Frequency in Prediction
Head", Findings of ACL 2023.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
