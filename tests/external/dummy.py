"""An engine to start, for tests of starting and stopping; a program, standard library only.

It serves the stub's protocol, with four tokens per reply. It may start children that would outlive
it: one in its own process group, one in a session of its own, each deaf to SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.external.stub import DONE, Script, Stub, text, usage

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
REPLY = Script(
    [
        *((0.01 * i, text(f"{i} ", ids=[i])) for i in range(3)),
        (0.03, text("3", ids=[3], finish="length")),
        (0.03, usage(4, 1)),
        (0.03, DONE),
    ]
)

SLOW = Script([(0.0, text("0 ", ids=[0])), (60.0, DONE)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--children", type=Path, help="file for the numbers of two deaf children")
    parser.add_argument("--fail", help="say this and end at once with status 3")
    parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--slow", action="store_true", help="take a minute for a reply")
    parser.add_argument("--die-at", type=int, help="end with status 4 at this POST")
    args, rest = parser.parse_known_args()
    print("arguments:", *rest, flush=True)
    if args.fail:
        print(args.fail, flush=True)
        sys.exit(3)
    if args.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if args.children:
        command = [sys.executable, "-I", "-S", "-c", DEAF]
        children = [subprocess.Popen(command, start_new_session=new) for new in (False, True)]
        numbers = [os.getpid(), *(child.pid for child in children)]
        args.children.write_text(" ".join(map(str, numbers)))

    def script(number: int, _: dict[str, object]) -> Script:
        if number == args.die_at:
            print("the dummy dies as it was told to", flush=True)
            os._exit(4)
        return SLOW if args.slow else REPLY

    time.sleep(0.05)
    Stub(script, port=args.port).open().serve_forever()


if __name__ == "__main__":
    main()
