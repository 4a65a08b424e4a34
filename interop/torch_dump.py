"""Makes of a dump in JSON the file that slime's torch.save makes of it: a zip with a pickle, of which no tensor is a part.
What Rollscope adds to a dump is left out.

Usage: torch_dump.py DUMP.json DUMP.pt
"""

import json
import pickle
import sys
import zipfile


def shared(members: dict) -> dict:
    own = ((name, value) for name, value in members.items() if name != "rollscope")
    return {name: sys.intern(value) if isinstance(value, str) else value for name, value in own}


def main() -> None:
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8") as lines:
        # As in the program that makes a dump, a text that stands in many places is one.
        dump = json.loads(lines.readline(), object_hook=shared)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", pickle.dumps(dump, protocol=2))
        file.writestr("archive/byteorder", "little")
        file.writestr("archive/version", "3\n")


if __name__ == "__main__":
    main()
