"""grown: continual learning by growth. One network, many tasks, nothing forgotten to the last bit."""

from importlib.metadata import PackageNotFoundError, version

from grown import data, models
from grown.config import Config, Recipe
from grown.data import Task
from grown.errors import ConfigError, DeviceError, FileError, GrownError, TaskError, TemplateError
from grown.methods import METHODS, load
from grown.methods.base import StageReport, TaskReport
from grown.methods.grown import GrowthCurve, GrowthPoint, Learner, Settled, Stage, grow_alone

try:
    __version__ = version("grown")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "METHODS",
    "Config",
    "ConfigError",
    "DeviceError",
    "FileError",
    "GrownError",
    "GrowthCurve",
    "GrowthPoint",
    "Learner",
    "Recipe",
    "Settled",
    "Stage",
    "StageReport",
    "Task",
    "TaskError",
    "TaskReport",
    "TemplateError",
    "__version__",
    "data",
    "grow_alone",
    "load",
    "models",
]
