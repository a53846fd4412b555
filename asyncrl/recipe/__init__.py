"""Recipes: the schema of a run's YAML file, a class per section.

The classes are imported from here; file.py reads and writes recipes, keys.py lists their keys.
"""

from asyncrl.recipe.algorithm_terms import AsymRe as AsymRe
from asyncrl.recipe.algorithm_terms import Gdpo as Gdpo
from asyncrl.recipe.algorithm_terms import PassAtK as PassAtK
from asyncrl.recipe.algorithm_terms import PpoClip as PpoClip
from asyncrl.recipe.algorithm_terms import Sapo as Sapo
from asyncrl.recipe.algorithm_terms import SequenceMasked as SequenceMasked
from asyncrl.recipe.algorithm_terms import Truncated as Truncated
from asyncrl.recipe.algorithm_terms import WReinforce as WReinforce
from asyncrl.recipe.recipe import Recipe as Recipe
from asyncrl.recipe.sections.alarms import Alarms as Alarms
from asyncrl.recipe.sections.alarms import Tracker as Tracker
from asyncrl.recipe.sections.algorithm import Algorithm as Algorithm
from asyncrl.recipe.sections.data import Data as Data
from asyncrl.recipe.sections.data import Prepare as Prepare
from asyncrl.recipe.sections.data import Prompt as Prompt
from asyncrl.recipe.sections.evaluation import Answering as Answering
from asyncrl.recipe.sections.evaluation import Evaluation as Evaluation
from asyncrl.recipe.sections.evaluation import HeldOutSet as HeldOutSet
from asyncrl.recipe.sections.model import Model as Model
from asyncrl.recipe.sections.rollout import Replay as Replay
from asyncrl.recipe.sections.rollout import Rollout as Rollout
from asyncrl.recipe.sections.rollout import Verifying as Verifying
from asyncrl.recipe.sections.serving import Cluster as Cluster
from asyncrl.recipe.sections.serving import Placement as Placement
from asyncrl.recipe.sections.serving import Serving as Serving
from asyncrl.recipe.sections.trainer import Critic as Critic
from asyncrl.recipe.sections.trainer import Parallel as Parallel
from asyncrl.recipe.sections.trainer import Trainer as Trainer
from asyncrl.recipe.sections.turns import Agent as Agent
from asyncrl.recipe.sections.turns import Turns as Turns
from asyncrl.recipe.sources import ColumnMapping as ColumnMapping
from asyncrl.recipe.sources import Source as Source
from asyncrl.recipe.terms import OwnFunction as OwnFunction
from asyncrl.recipe.terms import chosen as chosen
