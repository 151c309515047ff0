"""Machine code of a kernel image as counts of instructions, read with nvdisasm (any machine; extra: test)."""

import pathlib
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter


def nvdisasm() -> str:
    """Path of the disassembler: of the wheel that the test extra installs, else of a CUDA toolkit."""
    nvidia = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
    for found in sorted(nvidia.glob("*/bin/nvdisasm")):
        return str(found)
    found = shutil.which("nvdisasm")
    assert found, "nvdisasm is missing; install devkernels[test]"
    return found


class Sass:
    """Instructions of one image, by full mnemonic."""

    def __init__(self, image):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(image.cubin)
            file.flush()
            command = [nvdisasm(), "--print-code", file.name]
            self.text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        pattern = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]+)"
        self.counts = Counter(re.findall(pattern, self.text))
        assert self.counts, "no instructions found"

    def count(self, *prefixes: str) -> int:
        """Instructions whose mnemonic starts with any of `prefixes`; NOP padding is not counted in `total`."""
        return sum(number for name, number in self.counts.items() if name.startswith(prefixes))

    def numbers(self, prefix: str, size: int = 8) -> int:
        """Numbers of `size` bytes that accesses of this kind move; none of them may be narrower."""
        each = {f"{prefix}.{8 * size * count}": count for count in (1, 2) if size * count <= 16}
        assert sum(self.counts[name] for name in each) == self.count(prefix), self.counts
        return sum(self.counts[name] * count for name, count in each.items())

    @property
    def total(self) -> int:
        return sum(number for name, number in self.counts.items() if name != "NOP")

    @property
    def spills(self) -> int:
        """Accesses to local memory."""
        return self.count("LDL", "STL")

    def between(self, operation: str, pattern: str) -> int:
        """Lines with `pattern` from the first to the last line that has `operation`: in the main loop, unrolled."""
        lines = self.text.splitlines()
        found = [i for i, line in enumerate(lines) if operation in line]
        return sum(bool(re.search(pattern, line)) for line in lines[found[0] : found[-1]])
