"""Folders of attempts, whatever becomes of their processes."""

import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from dagctl import scratch

_HOLD = "import sys\nfrom dagctl.scratch import Scratch\nprint(Scratch().file('.x'), flush=True)\nsys.stdin.read()"


class ScratchTest(unittest.TestCase):
    def test_folders_of_killed_processes_go(self) -> None:
        with tempfile.TemporaryDirectory() as parent, mock.patch.object(tempfile, "tempdir", parent):
            mine = scratch.Scratch()
            kept = mine.file(".csv")
            environment = {**os.environ, "TMPDIR": parent, "PYTHONPATH": os.pathsep.join(sys.path)}
            with subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  env=environment, text=True) as other:
                assert other.stdout is not None
                theirs = other.stdout.readline().strip()
                scratch.sweep()
                self.assertTrue(os.path.exists(theirs), "its process lives")
                other.kill()
            scratch.sweep()
            self.assertFalse(os.path.exists(os.path.dirname(theirs)))
            self.assertTrue(os.path.exists(kept))
            mine.remove()
            self.assertEqual(os.listdir(parent), [])


if __name__ == "__main__":
    unittest.main()
