"""The parts a diagnosis is made of: what is measured, the rules, causes, repairs, the chapters."""

from rankscope.experiments.diagnosis._asked import DEFAULT as DEFAULT
from rankscope.experiments.diagnosis._asked import Asked as Asked
from rankscope.experiments.diagnosis._diagnose import diagnose_subject as diagnose_subject
from rankscope.experiments.diagnosis._diagnose import examine as examine
from rankscope.experiments.diagnosis._diagnose import judge_few as judge_few
from rankscope.experiments.diagnosis._diagnose import measured_of as measured_of
from rankscope.experiments.diagnosis._repairs import Mended as Mended
from rankscope.experiments.diagnosis._repairs import health as health
from rankscope.experiments.diagnosis._rules import RULES as RULES
from rankscope.experiments.diagnosis._weights import Weight as Weight
from rankscope.experiments.diagnosis._weights import outer_weights as outer_weights
from rankscope.experiments.diagnosis._weights import weights_of as weights_of
