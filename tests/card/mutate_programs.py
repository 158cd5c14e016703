"""Mutates programs, fixes their checksum, and lets the card decode and time them.

Run by test_decode.py: `python -m tests.card.mutate_programs COUNT [SEED]` prints how many the card
took.
"""

from __future__ import annotations

import json
import random
import struct
import sys
import zlib

from openspyre.errors import CardError, InvalidProgram
from openspyre.ir.binary import HEADER_WORDS, encode
from tests.card.hand_programs import copies, matmul, pointwise
from tests.card.time_engine import card


def mutated(data: bytes, random: random.Random) -> bytes:
    """Up to three words of the body changed, under a checksum that fits."""
    body = bytearray(data[8 * HEADER_WORDS :])
    for _ in range(random.randint(1, 3)):
        at = 8 * random.randrange(len(body) // 8)
        match random.randrange(4):
            case 0:
                body[at + random.randrange(8)] ^= 1 << random.randrange(8)
            case 1:
                body[at : at + 8] = struct.pack("<q", random.randint(-3, 70))
            case 2:
                body[at : at + 8] = random.randbytes(8)
            case _:
                other = 8 * random.randrange(len(body) // 8)
                body[at : at + 8] = body[other : other + 8]
    header = data[:24] + struct.pack("<2q", zlib.crc32(body), 0)
    return header + bytes(body)


def main(count: int, seed: int) -> None:
    """Prints the counts as JSON; a crash of the card ends the process."""
    choice = random.Random(seed)
    bases = [
        encode(copies(64, 64, 4)),
        encode(pointwise(32, 64, 2, ["exp", "mul", "floor"])),
        encode(matmul(64, 128, 128, (2, 4), (16, 32, 64))),
    ]
    counts = {"accepted": 0, "refused": 0, "stopped": 0}
    one = card()
    address = one.allocate(1 << 20)
    for number in range(count):
        data = mutated(bases[number % len(bases)], choice)
        one.write(address, data)
        try:
            loaded = one.load(address, len(data))
        except InvalidProgram:
            counts["refused"] += 1
            continue
        counts["accepted"] += 1
        slots = [choice.choice((0, 1, 64, 1 << 40)) for _ in range(loaded.slots)]
        try:
            one.time(loaded, struct.pack(f"<{len(slots)}q", *slots))
        except CardError:
            counts["stopped"] += 1
        one.unload(loaded)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
