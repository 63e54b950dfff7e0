"""Make tests/data/tokenizer_smollm2.json: texts and the token ids that llama.cpp gives them.

    llama-server -m SmolLM2-135M-Instruct.Q4_1.gguf --port 8123
    python scripts/make_tokenizer_reference.py 127.0.0.1:8123

llama.cpp is the reference, not transformers: the latter's conversion of a GGUF file drops this
model's rule that digits stand alone, and so splits spaces before a digit otherwise.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "tests" / "data" / "tokenizer_smollm2.json"

WRITTEN = [
    "",
    " ",
    "\n",
    "Hello world",
    " leading and trailing ",
    "It's we're they'll I'd can't 'S 'T",
    "1234567 3.14159 1,000,000 0x1F 2026-11-29",
    "x\n    0x0080: 1,\n\t\t42\n      7",
    "def f(a, b):\n    return a + b  # sum\n\n\nclass A:\n\tpass\n",
    '{"id": 17, "tags": ["a", "b"], "ok": true, "none": null}\n',
    "a  b   c    d\t\te\r\n\r\nf \u00a0 g \u2028 h",
    "naïve café Ünïcödé straße ĞİŞ ﬁ ǅ",
    "日本語のテキスト 中文文本 한국어 텍스트 ภาษาไทย हिन्दी العربية עברית",
    "½ ² ³ ٣ १ Ⅷ ㉈ \U0001d7d8 ¾½ x² ½½",
    "🙂 👨‍👩‍👧 🇩🇪 ✈️ e\u0301 \u200b\ufeff\ufffd",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\path\\file.txt",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|> <|im_end|> <repo_name>a<file_sep>b <|not_a_token|> <|im_start",
    "!!! ??? ... --- === ### *** /// ~~~ ''' \"\"\" ``` $$$ €£¥",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "word " * 40,
    "\x00\x01\x1f\x7f\x80",
]
ALPHABET = "ab Z09 \t\n\r\u00a0\u2028½²٣१Ⅷ㉈\U0001d7d8.,!?'s't're'LL-_()中é\u0301🙂👨\u200d👩ßİ"
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", " ", "\n", "user", "a", "<file_sep>"]


def texts() -> list[str]:
    """The written texts, this project's own sources, and seeded random ones."""
    rng = random.Random(2026)
    found = list(WRITTEN)
    for name in ("src/wager/types.py", "native/module.cpp", "pyproject.toml"):
        path = OUT.parent.parent.parent / name
        if path.is_file():
            found.append(path.read_text(encoding="utf-8")[:1500])
    any_character = [chr(code) for code in range(0x30000) if not 0xD800 <= code < 0xE000]
    for _ in range(60):
        found.append("".join(rng.choice(any_character) for _ in range(12)))
        found.append("".join(rng.choice(ALPHABET) for _ in range(rng.randrange(1, 40))))
    for _ in range(15):
        found.append("".join(rng.choice(SPECIALS) for _ in range(8)))
    return found


def main() -> None:
    """Ask the server named on the command line for the ids of every text."""
    connection = http.client.HTTPConnection(sys.argv[1])
    cases = []
    for text in texts():
        body = {"content": text, "add_special": False, "parse_special": True}
        connection.request(
            "POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"}
        )
        ids = json.loads(connection.getresponse().read())["tokens"]
        cases.append({"text": text, "ids": ids})
    OUT.write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{OUT}: {len(cases)} texts, {sum(len(case['ids']) for case in cases)} ids")


if __name__ == "__main__":
    main()
