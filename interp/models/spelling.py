"""The text of tokens, however a vocabulary spells them.

A vocabulary may spell 。 as `。`, `▁。` (SentencePiece), `##。` (WordPiece), `ãĢĤ` (byte-level BPE), or as the three
tokens `<0xE3>`, `<0x80>` and `<0x82>` for its bytes. To find out which, the tokenizer is asked what it makes of tokens
that are spelled in these ways.
"""

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, SupportsInt

import numpy as np
from tokenizers import decoders, models

from interp.models.sites import Model

__all__ = ["Spelling", "special_ids", "token_names"]

_KEPT = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTE_LEVEL = {chr(byte): byte for byte in _KEPT}  # as GPT-2 spells bytes
for _i, _byte in enumerate(sorted({*range(256)} - {*_KEPT})):
    _BYTE_LEVEL[chr(256 + _i)] = _byte
_ONE_BYTE = {chr(byte): byte for byte in range(256)}  # as ByT5 does
_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_VISIBLE = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥"})
_JOINERS = "\u200c\u200d"
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Zs", "Zl", "Zp")


def _in_brackets(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("interp.bytes", _in_brackets)


class Spelling:
    """How a tokenizer's vocabulary spells text.

    Examples:
        >>> from interp.testing import toy_tokenizer
        >>> Spelling(toy_tokenizer()).texts([0, 7, 8])  # [PAD] says nothing
        [None, 'w0', 'w1']
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        listed = {} if backend else {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        self._token_of: Callable[[int], str | None] = backend.id_to_token if backend else listed.get
        self._special = special_ids(tokenizer)
        self._verbatim = {*tokenizer.added_tokens_decoder} - self._special
        joined = _joined(tokenizer)

        def makes(tokens: Sequence[str], text: str) -> bool:
            try:
                return joined(list(tokens)) == text
            except (TypeError, ValueError):  # ByT5's tokenizer, for a token that is not a byte
                return False

        self._bytes: set[str] = set()
        for spelled in (_BYTE_LEVEL, _ONE_BYTE):
            of_byte = dict(zip(spelled.values(), spelled, strict=True))
            tokens = [of_byte[byte] for byte in "。".encode()]
            if makes(tokens, "。"):
                self._bytes = {*spelled}
                self._as_latin1 = {ord(character): byte for character, byte in spelled.items()}
                break
        self._falls_back = makes(["<0xE3>", "<0x80>", "<0x82>"], "。")
        self._marks_spaces = makes(["a", "▁b"], "a b")
        self._marks_ends = makes(["a</w>", "b</w>"], "a b")
        self._continues = makes(["a", "##b"], "ab")
        self._has_words = makes(["a", "b"], "a b")

    def texts(self, ids: Sequence[int]) -> list[str | None]:
        """Return the text of each token by itself, including spaces. It is None for a special token, for an id without
        a token, and for a token with only some of the bytes of a character."""
        return list(map(_decoded, self.said(ids)))

    def texts_in_row(self, ids: Sequence[int]) -> list[str | None]:
        """Return the text of each token in its context: like `texts`, but a token with some of the bytes of a character
        gives the whole character if the other bytes are next to it."""
        row_bytes = self.said(ids)
        texts = list(map(_decoded, row_bytes))
        start = 0
        for parts, run in groupby(
            token_bytes is not None and text is None for token_bytes, text in zip(row_bytes, texts, strict=True)
        ):
            end = start + len(list(run))
            if parts:
                texts[start:end] = _characters_of([token_bytes or b"" for token_bytes in row_bytes[start:end]])
            start = end
        return texts

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return readable names of tokens. Spaces are visible (`␣the`), incomplete characters are bytes in brackets
        (`<E3><81>`), and other invisible characters are shown by number (`<U+200B>`). WordPiece's mark for the
        continuation of a word stays (`##ing`), and special tokens keep their spelling. An id without a token is shown
        as a number."""
        names = []
        for token_id in ids:
            token = self._token_of(token_id)
            text = None if token is None else self._utf8(token_id, token)
            if token is None:
                names.append(str(token_id))
            elif text is None:
                names.append(token)
            else:
                mark = "##" if self._continues_word(token_id, token) else ""
                names.append(mark + _visible_text(text.decode("utf-8", "interp.bytes")))
        return names

    def running(self, ids: Sequence[int]) -> str:
        """Return tokens as running text: like `names`, but with plain spaces, and with whole characters if all their
        bytes are there. If tokens are words, there is a space before each token that does not continue a word."""
        text = b""
        for token_id, token_bytes in zip(ids, self.said(ids), strict=True):
            token = self._token_of(token_id) or str(token_id)
            if self._has_words and not self._continues_word(token_id, token):
                text += b" "
            text += token.encode() if token_bytes is None else token_bytes
        return _visible_text(text.decode("utf-8", "interp.bytes")).replace(_VISIBLE[ord(" ")], " ")

    def said(self, ids: Sequence[int]) -> list[bytes | None]:
        """Return the text of each token as UTF-8 bytes; None for a special token and for an id without a token."""
        tokens = map(self._token_of, ids)
        return [None if token is None else self._utf8(i, token) for i, token in zip(ids, tokens, strict=True)]

    def _utf8(self, token_id: int, token: str) -> bytes | None:
        if token_id in self._special:
            return None
        if token_id in self._verbatim:
            return token.encode()
        if self._bytes:
            in_bytes = self._bytes.issuperset(token)
            return token.translate(self._as_latin1).encode("latin-1") if in_bytes else token.encode()
        if self._falls_back and (byte := _FALLBACK.fullmatch(token)):
            return bytes.fromhex(byte[1])
        if self._continues_word(token_id, token):
            token = token[2:]
        if self._marks_spaces:
            token = token.replace("▁", " ")
        if self._marks_ends and token.endswith("</w>"):
            token = token.removesuffix("</w>") + " "
        return token.encode()

    def _continues_word(self, token_id: int, token: str) -> bool:
        return self._continues and len(token) > 2 and token.startswith("##") and token_id not in self._verbatim


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of a tokenizer's special tokens, such as BOS, `[CLS]` and those of a chat template."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    ids = set(getattr(tokenizer, "all_special_ids", ()))
    for number, token in added.items():
        if token.special:
            ids.add(number)
    return ids


def token_names(model: Model, ids: Iterable[SupportsInt]) -> list[str]:
    """Return readable names of tokens (`Spelling.names`), or their ids if there is no tokenizer."""
    numbers = list(map(int, ids))
    return list(map(str, numbers)) if model.tokenizer is None else Spelling(model.tokenizer).names(numbers)


def _joined(tokenizer: Any) -> Callable[[list[str]], str]:
    """The function that joins tokens to text. If a fast tokenizer has none, the one that fits its other parts."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is not None:
        return tokenizer.convert_tokens_to_string
    if isinstance(backend.model, models.WordPiece):
        return decoders.WordPiece().decode
    parts = repr(backend.pre_tokenizer)
    for name, decoder in {"ByteLevel": decoders.ByteLevel(), "Metaspace": decoders.Metaspace()}.items():
        if name in parts:
            return decoder.decode
    return " ".join


def _decoded(token_bytes: bytes | None) -> str | None:
    if token_bytes is None:
        return None
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return None


def _character_length(token_bytes: bytes) -> int:
    """The number of bytes of the character that begins here, or 0 if none does."""
    for length in range(1, len(token_bytes) + 1):
        if _decoded(token_bytes[:length]) is not None:
            return length
    return 0


def _characters_of(parts: Sequence[bytes]) -> list[str | None]:
    """For each of these byte strings, the characters it is a part of, or None if there are none."""
    joined = b"".join(parts)
    owners = np.repeat(np.arange(len(parts)), list(map(len, parts))).tolist()
    texts = [""] * len(parts)
    position = 0
    while position < len(joined):
        length = _character_length(joined[position : position + 4])
        for owner in sorted({*owners[position : position + length]}):
            texts[owner] += joined[position : position + length].decode()
        position += length or 1
    return [text or None for text in texts]


def _visible_text(text: str) -> str:
    """Text in which every character is visible."""
    visible = text.translate(_VISIBLE)
    if not visible.isprintable():
        joins = any(unicodedata.category(character) not in _UNSEEN for character in text)
        spelled = []
        for character in visible:
            unseen = unicodedata.category(character) in _UNSEEN and not (joins and character in _JOINERS)
            spelled.append(f"<U+{ord(character):04X}>" if unseen else character)
        visible = "".join(spelled)
    return f"◌{visible}" if visible and unicodedata.category(visible[0]).startswith("M") else visible
