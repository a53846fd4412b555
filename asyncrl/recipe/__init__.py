"""Recipes: the schema of a run's YAML file, a class per section and a file per class.

The classes are imported from here; file.py reads and writes recipes, keys.py lists their keys.
"""

from asyncrl.recipe.alarms import Alarms as Alarms
from asyncrl.recipe.algorithm import Algorithm as Algorithm
from asyncrl.recipe.cluster import Cluster as Cluster
from asyncrl.recipe.critic import Critic as Critic
from asyncrl.recipe.data import ColumnMapping as ColumnMapping
from asyncrl.recipe.data import Data as Data
from asyncrl.recipe.data import Source as Source
from asyncrl.recipe.evaluation import Evaluation as Evaluation
from asyncrl.recipe.model import Model as Model
from asyncrl.recipe.placement import Placement as Placement
from asyncrl.recipe.prepare import Prepare as Prepare
from asyncrl.recipe.prompt import Prompt as Prompt
from asyncrl.recipe.recipe import Recipe as Recipe
from asyncrl.recipe.replay import Replay as Replay
from asyncrl.recipe.rollout import Rollout as Rollout
from asyncrl.recipe.serving import Serving as Serving
from asyncrl.recipe.trackers import Tracker as Tracker
from asyncrl.recipe.trainer import Parallel as Parallel
from asyncrl.recipe.trainer import Trainer as Trainer
from asyncrl.recipe.verifying import Verifying as Verifying
