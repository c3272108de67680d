"""The axis glossary: all tensor annotations in rankscope use these names.

batch     samples that do not see one another
token     positions of one sequence; rows of the theory's X
feature   the width of the residual stream; columns of X
head      attention heads
query     the token that attends (rows of an attention matrix P)
key       the token attended to (columns of P)
layer     blocks, counted from 1; layer 0 is the input of the first block
length    number of layers that a path does not skip
network   random networks of one spec, each on a sample

A leading ``*batch`` means any number of batch axes, including none. Public functions take plain
tensors and check them, so that a wrong shape gives a readable error; the private functions behind
them have these annotations, which the tests check at run time.
"""

from jaxtyping import Bool, Float
from torch import Tensor

Tokens = Float[Tensor, "*batch token feature"]
TokenMask = Bool[Tensor, "*batch token"]
PerSample = Float[Tensor, "*batch"]
Spectrum = Float[Tensor, "*batch singular"]
Attention = Float[Tensor, "*batch head query key"]
PerHead = Float[Tensor, "*batch head"]
Hidden = Float[Tensor, "batch token feature"]
