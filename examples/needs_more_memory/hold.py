"""Holds more and more memory, and says how much."""

held = []
for number in range(1, 129):
    held.append(bytearray(8 << 20))
    print(f"held {number * 8} MiB", flush=True)
