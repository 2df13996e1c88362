import sys

from support import ROOT

sys.path.append(str(ROOT / "trainings"))
