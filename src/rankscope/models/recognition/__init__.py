"""Blocks of any architecture taken apart: observed on a probe, recognised by their numbers.

For ``rankscope.models.families``, which knows where a model keeps its blocks.
"""

from rankscope.models.recognition._attention import ROLES as ROLES
from rankscope.models.recognition._attention import AttentionParts as AttentionParts
from rankscope.models.recognition._attention import DescribedScores as DescribedScores
from rankscope.models.recognition._blocks import ACTIVATION_NAMES as ACTIVATION_NAMES
from rankscope.models.recognition._blocks import RecognisedBlock as RecognisedBlock
from rankscope.models.recognition._blocks import confirmed as confirmed
from rankscope.models.recognition._blocks import recognise as recognise
from rankscope.models.recognition._observation import RECOGNISED as RECOGNISED
from rankscope.models.recognition._observation import TOLERANCES as TOLERANCES
from rankscope.models.recognition._observation import Habits as Habits
from rankscope.models.recognition._observation import Observed as Observed
from rankscope.models.recognition._observation import Reading as Reading
from rankscope.models.recognition._observation import observe as observe
from rankscope.models.recognition._observation import relative_error as relative_error
from rankscope.models.recognition._precision import full_precision as full_precision
from rankscope.models.recognition._precision import single_precision as single_precision
from rankscope.models.recognition._precision import telling_weights as telling_weights
from rankscope.models.recognition._projections import HeadAxis as HeadAxis

__all__: list[str] = []
