"""GROWN (Yang, Lin, Zhang, Fan 2021). Start reading in `algorithm.py`."""

from grown.methods.grown.alone import GrowthCurve, GrowthPoint, grow_alone
from grown.methods.grown.learner import Learner
from grown.methods.grown.settled import Settled
from grown.methods.grown.stage import Stage

__all__ = ["GrowthCurve", "GrowthPoint", "Learner", "Settled", "Stage", "grow_alone"]
