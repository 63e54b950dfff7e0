"""Text to token ids and back, and text that grows token by token.

Decoding is defined once, here, from the bytes of each token: whole decoding is streaming without
the pauses, so that the two cannot differ. For byte-level vocabularies it equals the tokenizers
library's own decoding; for SentencePiece ones too, but for byte tokens that form no character
(there each byte becomes U+FFFD, here each broken sequence does).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from wager.errors import RequestError, UnsupportedModel

if TYPE_CHECKING:
    from wager.models.chat import ChatTemplate

Style: TypeAlias = Literal["bytes", "pieces"]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE: Final = "\u2581"


def _byte_of_symbol() -> dict[str, int]:
    """Byte-level vocabularies write each byte as one printable character (GPT-2's table)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    table = {chr(byte): byte for byte in shown}
    table.update({chr(256 + i): byte for i, byte in enumerate(hidden)})
    return table


BYTE_OF_SYMBOL: Final = _byte_of_symbol()


class Tokenizer:
    """Wraps a parsed tokenizer of the tokenizers library.

    ``vocab_size`` is the largest id + 1; a model may have more rows. ``name`` says where it came
    from; tokenizers with equal ``hash`` give equal ids. ``backend`` is a ``tokenizers.Tokenizer``.
    """

    def __init__(
        self,
        backend: Any,
        *,
        name: str,
        digest: str,
        vocab_size: int,
        bos_id: int | None = None,
        template: ChatTemplate | None = None,
        tool_template: ChatTemplate | None = None,
    ) -> None:
        self.name = name
        self.hash = digest
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self._backend = backend
        self._template = template
        self._tool_template = tool_template
        self._style, self.strips_first_space = decoder_style(backend, name)
        added = backend.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {
            token: entry.content.encode("utf-8") for token, entry in added.items()
        }
        self._special = {token for token, entry in added.items() if entry.special}

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def chat_template(self) -> str | None:
        """The text of the model's chat template."""
        return self.template_text(tools=False)

    def template_text(self, tools: bool) -> str | None:
        """The text of the chat template for conversations with tools, or without."""
        template = self._template_for(tools)
        return None if template is None else template.text

    def _template_for(self, tools: bool) -> ChatTemplate | None:
        return (self._tool_template if tools else None) or self._template

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are no text: decoding leaves them out unless asked."""
        return frozenset(self._special)

    def special_id(self, text: str) -> int | None:
        """The id of a special token by its text."""
        token = self._backend.token_to_id(text)
        return token if token in self._special else None

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written in it are taken as such.

        ``add_special`` adds what the tokenizer puts around a text (often BOS). Raises RequestError
        for text that is not Unicode (lone surrogates).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RequestError(f"prompt: is not valid Unicode: {error.reason}") from error
        return list(self._backend.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of token ids. Ids that the vocabulary does not know give nothing."""
        stream = Detokenizer(self, skip_special=skip_special)
        return "".join(map(stream.push, ids)) + stream.flush()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as the model's template writes it; encode with ``add_special=False``.

        See `ChatTemplate.render`. Raises RequestError when the model has no template, or the
        messages, tools or options of the template (``kwargs``) cannot be taken.
        """
        template = self._template_for(bool(tools))
        if template is None:
            raise RequestError(
                "messages: this model has no chat template; give a plain prompt instead"
            )
        return template.render(
            messages,
            add_generation_prompt,
            tools=tools,
            kwargs=kwargs,
            continue_final_message=continue_final_message,
        )

    def stream(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """For the tokens that follow ``prompt_ids``, whose text is not repeated."""
        return Detokenizer(self, at_start=not prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for; a character may be spread over several."""
        if token_id in self._added:
            return self._added[token_id]
        text = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if text is None:
            return b""
        if self._style == "bytes":
            try:
                return bytes([BYTE_OF_SYMBOL[symbol] for symbol in text])
            except KeyError:
                return str(text).encode("utf-8")
        match = _BYTE_TOKEN.fullmatch(text)
        if match:
            return bytes([int(match[1], 16)])
        return str(text).replace(_SPACE, " ").encode("utf-8")

    def is_special(self, token_id: int) -> bool:
        """Whether the token is no text."""
        return token_id in self._special


class Detokenizer:
    """Text that grows token by token; what was given out never changes.

    Bytes of an unfinished character are held back until it is whole. The parts that `push` and
    `flush` return, put together, are what `Tokenizer.decode` gives for all ids.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special: bool = True, at_start: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        # SentencePiece puts a space before the first word, which is not part of the text.
        self._strip = at_start and tokenizer.strips_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Text that is newly complete, maybe none."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._out(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def flush(self) -> str:
        """At the end: one U+FFFD if a character is unfinished, else nothing."""
        return self._out(self._decoder.decode(b"", final=True))

    def _out(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


def decoder_style(backend: Any, name: str) -> tuple[Style, bool]:
    """How tokens become text, and whether the first space is dropped; from the decoder.

    Raises UnsupportedModel for decoders of another kind.
    """
    decoder = backend.decoder
    steps = _steps(json.loads(decoder.__getstate__())) if decoder is not None else []
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return "bytes", False
    if kinds == ["Metaspace"]:
        return "pieces", steps[0].get("prepend_scheme", "always") != "never"
    if kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        replace = [step for step in steps if step["type"] == "Replace"]
        strip = [step for step in steps if step["type"] == "Strip"]
        plain = all(
            step.get("pattern") == {"String": _SPACE} and step.get("content") == " "
            for step in replace
        ) and all((step["content"], step["start"], step["stop"]) == (" ", 1, 0) for step in strip)
        if plain:
            return "pieces", bool(strip)
    raise UnsupportedModel(
        f"{name}: a tokenizer whose decoder is {' + '.join(map(str, kinds)) or 'missing'} is not "
        "supported; what works: byte-level BPE, and SentencePiece (Metaspace or byte fallback)"
    )


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]
