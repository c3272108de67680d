"""The parts a diagnosis is made of: what is measured, the rules, the words, the chapters."""

from rankscope.experiments.diagnosis._diagnose import diagnose_subject as diagnose_subject
from rankscope.experiments.diagnosis._rules import RULES as RULES
