"""Print every package that pip says it would install, with its version and the checksum of its file.

make lock
"""

import json
import sys

_HEADER = """\
# What CI installs, byte for byte: x86-64 Linux, Python {python}, torch for the CPU. Made by `make lock`.
# For other machines, whose wheels are others: pip install -c constraints.txt '.[test]'
"""


def main() -> None:
    report = json.load(sys.stdin)
    print(_HEADER.format(python=report["environment"]["python_version"]), end="")
    found = {entry["metadata"]["name"].lower().replace("_", "-"): entry for entry in report["install"]}
    for name in sorted(found.keys() - {"elektron"}):
        version = found[name]["metadata"]["version"].partition("+")[0]  # torch's name for its CPU build
        print(f"{name}=={version} --hash=sha256:{found[name]['download_info']['archive_info']['hashes']['sha256']}")


main()
