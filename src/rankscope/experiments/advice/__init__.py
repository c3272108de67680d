"""Changes of a design, their costs, and criteria for designs."""

from rankscope.experiments.advice._changes import Change as Change
from rankscope.experiments.advice._changes import Price as Price
from rankscope.experiments.advice._changes import changes as changes
from rankscope.experiments.advice._changes import context_share as context_share
from rankscope.experiments.advice._changes import parameter_count as parameter_count
from rankscope.experiments.advice._trials import CRITERIA as CRITERIA
from rankscope.experiments.advice._trials import Spread as Spread
from rankscope.experiments.advice._trials import Standing as Standing
from rankscope.experiments.advice._trials import Trial as Trial
from rankscope.experiments.advice._trials import best_of_each_kind as best_of_each_kind
from rankscope.experiments.advice._trials import embedding_scale as embedding_scale
from rankscope.experiments.advice._trials import helps as helps
from rankscope.experiments.advice._trials import is_better as is_better
from rankscope.experiments.advice._trials import measured_values as measured_values
from rankscope.experiments.advice._trials import ranked as ranked
from rankscope.experiments.advice._trials import sentences as sentences
from rankscope.experiments.advice._trials import tried as tried
