#!/usr/bin/env python3
"""Rows of n-grams by the formulas that the models' publishers give, for tests: `python3 goldens.py > goldens.txt`.

It shares nothing with the hash in Rust and in CUDA. Both walk back from each token; this program builds whole shifted
sequences, as the publishers' programs do. A line is: model, number of the sequence, token, and the rows.

DeepSeek-V4.1-Flash: multipliers of layers 1 and 14 as published, which are 2 r + 1 for the numbers r below (2**63 - 1) // 99092 // 2
that NumPy's generator draws from the seed 10007 * layer; the tokens' map is a stand-in, made by a formula, because the real one needs
the model's tokenizer. Qwen3.8-Flash-Next: multipliers as in its checkpoint, computed here from the seed that makes them.
"""

import random

MASK = (1 << 64) - 1


def is_prime(number):
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def primes_from(first, count):
    found = []
    while len(found) < count:
        if is_prime(first):
            found.append(first)
        first += 1
    return found


def splitmix(value):
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def rows(shifted, multipliers, primes, heads):
    """Rows of each position: `shifted[s]` is the sequence moved right by s."""
    offsets = [sum(primes[:head]) for head in range(len(primes))]
    table = []
    for position in range(len(shifted[0])):
        ids = []
        for order in range(2, len(multipliers) + 1):
            mixed = 0
            for shift in range(order):
                mixed ^= (shifted[shift][position] * multipliers[shift]) & MASK
            for head in range((order - 2) * heads, (order - 1) * heads):
                ids.append(mixed % primes[head] + offsets[head])
        table.append(ids)
    return table


EOS = 248044
QWEN_MULTIPLIERS = [2 * (splitmix(1234 + 0x9E3779B97F4A7C15 * (i + 1)) % (((1 << 63) - 1) // 248320 // 2)) + 1 for i in range(3)]
assert QWEN_MULTIPLIERS == [23703573157769, 20109073645365, 8052911324071]
QWEN_PRIMES = primes_from(20_000_000, 16)


def qwen(tokens):
    text = [EOS, EOS, *tokens]
    # Where the text of each position begins: behind the latest EOS before it.
    begins, begin = [], 0
    for position, token in enumerate(text):
        begins.append(begin)
        if token == EOS:
            begin = position + 1
    shifted = []
    for shift in range(3):
        moved = [text[p - shift] if shift == 0 or p - shift >= begins[p] else EOS for p in range(len(text))]
        shifted.append(moved[2:])
    return rows(shifted, QWEN_MULTIPLIERS, QWEN_PRIMES, 8)


VOCABULARY, PAD, IMAGE = 129_280, 2, 128_799
ENGRAM_MULTIPLIERS = [
    [76632096046245, 4839876093313, 35959672319349, 73987337458391],
    [67716810739261, 51510806800915, 30921347202721, 82619226485591],
]
ENGRAM_PRIMES = primes_from(16_000_000, 48)
ENGRAM_PRIMES = [ENGRAM_PRIMES[:24], ENGRAM_PRIMES[24:]]
assert [sum(primes) for primes in ENGRAM_PRIMES] == [384_006_168, 384_016_682]


def compressed(token):
    """A stand-in for the map of the model's tokenizer: onto 99,092 numbers, several tokens on one."""
    return (token * 7 + 3) % 99_092


def engram(table, tokens):
    pad = compressed(PAD)
    shifted = []
    blocked = [token == IMAGE for token in tokens]
    for shift in range(4):
        blocked = [was or p < shift or tokens[p - shift] == IMAGE for p, was in enumerate(blocked)]
        shifted.append([pad if blocked[p] else compressed(tokens[p - shift]) for p in range(len(tokens))])
    return rows(shifted, ENGRAM_MULTIPLIERS[table], ENGRAM_PRIMES[table], 8)


def main():
    draw = random.Random(23)
    # The first is that of EngramDB's tests, crates/engramdb-keygen/tests/golden.json.
    texts = [[248044, 5, 1000, 99999, 42, 7, 248044, 1234, 8, 999999, 2048, 332, 248044, 77]]
    texts.append([EOS if draw.random() < 0.2 else draw.randrange(248_320) for _ in range(24)])
    texts.append([draw.randrange(248_320)])
    print("# Made by goldens.py.")
    for number, tokens in enumerate(texts):
        for token, ids in zip(tokens, qwen(tokens)):
            print("qwen", number, token, *ids)
    texts = [[IMAGE if draw.random() < 0.15 else draw.randrange(VOCABULARY) for _ in range(24)] for _ in range(2)]
    texts.append([IMAGE, 0, PAD, VOCABULARY - 1])
    for table in range(2):
        for number, tokens in enumerate(texts):
            for token, ids in zip(tokens, engram(table, tokens)):
                print(f"engram{table}", number, token, *ids)


main()
