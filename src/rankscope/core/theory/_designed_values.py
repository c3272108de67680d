"""Values for which given tokens are an equilibrium: ``W = X⁻¹A⁻¹diag(c)X``, for any block."""

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankscope.arguments import checked
from rankscope.core.checks import finite, real
from rankscope.core.masks import Mask
from rankscope.core.metrics import numerical_rank
from rankscope.core.network import (
    Attention,
    Block,
    Network,
    NormRule,
    Step,
    Visibility,
    make_linear,
    norm_rule,
)
from rankscope.core.shapes import Hidden
from rankscope.errors import InputError, KindError, ShapeError, SpecError
from rankscope.numerals import short

Rows = Float[Tensor, "token feature"]


@checked
def design_values(network: Network, x: Tensor, *, c: float | Tensor | None = None) -> Network:
    """A copy of a network with values and outputs such that each layer returns ``x`` unchanged.

    >>> from rankscope.core.network import Spec
    >>> x = torch.eye(3, dtype=torch.float64)
    >>> net = Network.random(Spec(1, 1, 3, mlp_ratio=0, norm="sphere", norm_place="post"))
    >>> torch.allclose(design_values(net.double(), x)(x[None]), x[None])
    True

    ``x`` is ``(token, feature)`` or a batch of one, in the network's dtype. Queries, keys, norms,
    skips, masks and the output bias stay as they are. Before a post-norm ``N`` the step must return
    ``c_i`` times a preimage of token i under N; ``c`` is one number, or one for each token, and
    1 by default. A norm with an eps > 0 determines c from the size of each token, and without a
    post-norm there is no such freedom: leave c out then.

    Derived: with M the mixed values of all heads side by side, the output matrix of least norm with
    ``M O = T``. Heads as wide as the network get identity values, so that M is ``[A_1X … A_HX]``
    and O stacks the ``W_h``; narrower ones keep their values, since no ``W_h`` of full rank fits.
    """
    real(x, name="x", axes="(token, feature)", least=2)
    batch = x.unsqueeze(0) if x.ndim == 2 else x
    if batch.ndim != 3 or len(batch) != 1:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}, expected (token, feature) or a batch of one; "
            "design for one sample at a time: x[:1]."
        )
    network.check(batch)
    finite(batch, name="x")
    rows = batch[0].detach()
    designed = copy.deepcopy(network)
    designed.seed = None  # the weights are no longer what a seed draws
    done: dict[int, Mask] = {}
    for layer, (mask, block) in enumerate(zip(network.spec.masks, designed.blocks, strict=True)):
        assert isinstance(block, Block)
        if id(block) not in done:
            with torch.no_grad():
                _design(block, rows, Visibility.of(mask, len(rows), None, rows.device), c, layer)
        elif done[id(block)] != mask:
            raise SpecError(
                f"layer {layer} shares its weights with a layer under another mask ({mask} and "
                f"{done[id(block)]}), so no design fits both; use one mask for both."
            )
        done[id(block)] = mask
    return designed


@checked
@torch.no_grad()
def norm_preimage(norm: nn.Module, x: Tensor, *, c: float | Tensor | None = None) -> Tensor:
    """Tokens that a norm maps to ``x``, of scale ``c`` (by default 1, or what its eps requires).

    >>> from rankscope.core.network import Sphere
    >>> norm_preimage(Sphere(), torch.tensor([[0.6, 0.8]]), c=5)
    tensor([[3., 4.]])

    LayerNorm and RMSNorm with a gain g and a bias b: ``z = (x − b)/g`` has mean square
    ``s/(s + eps)`` where s was that of the input, so the input is ``z √(eps/(1 − mean z²))``;
    for eps = 0 any multiple is one. Raises if ``x`` is not in the range of the norm.
    """
    real(x, name="x", axes="(token, feature)", least=2)
    if x.ndim != 2:
        raise ShapeError(f"x has shape {tuple(x.shape)}, expected (token, feature).")
    scale = _check_scale(c, x)
    rule = norm_rule(norm, x.dtype)
    if rule is None:
        if scale is not None:
            raise InputError("c was given, but no norm follows the step; omit c.")
        return x
    for part in (rule.gain, rule.bias):
        if part is not None and part.shape[-1:] != x.shape[-1:]:
            raise ShapeError(f"x has {x.shape[-1]} features, the norm {part.shape[-1]}.")
    direction, natural = _undo_affine(rule, x)
    before = direction * (natural if scale is None else scale)
    _check_range(norm, x, before, chosen=scale is not None)
    return before


def _undo_affine(rule: NormRule, x: Rows) -> tuple[Rows, Tensor]:
    """Tokens before gain and bias, and the scale they had before the norm divided by it."""
    z = x if rule.bias is None else x - rule.bias
    if rule.gain is not None:
        # A feature of gain zero says nothing about its preimage; the check of the range decides.
        z = torch.where(rule.gain == 0, torch.zeros_like(z), z / rule.gain)
    if rule.eps == 0:
        return z, x.new_ones(())
    square = z.square().sum(-1, keepdim=True)
    if rule.square == "mean":
        square = square / x.shape[-1]
    # Tokens of square one have a preimage at infinity; a large one is as good in this dtype.
    excess = (1 - square).clamp(min=16 * torch.finfo(x.dtype).eps)
    return z, (rule.eps / excess).sqrt()


def _check_range(norm: nn.Module, x: Rows, before: Rows, *, chosen: bool) -> None:
    off = (norm(before.unsqueeze(0))[0] - x).abs().amax(-1)
    worst = int(off.argmax())
    if float(off[worst]) <= 1e3 * torch.finfo(x.dtype).eps * (1 + float(x.abs().max())):
        return
    error = short(float(off[worst]), digits=2)
    if chosen:
        try:
            norm_preimage(norm, x)
        except InputError:
            pass
        else:
            raise InputError(
                f"token {worst} cannot be an output of {norm} at the given scale c (off by "
                f"{error}): the norm's eps ties c to the size of the token. Leave c out, "
                "or use a network with norm_eps=0."
            )
    raise InputError(
        f"token {worst} is not in the range of {norm} (off by {error}), so no step that "
        "ends with it can return it; apply the norm first: x = norm(x)."
    )


def _design(block: Block, x: Rows, seen: Visibility, c: float | Tensor | None, layer: int) -> None:
    """Set the values and outputs of a block in place."""
    if len(block.steps) != 1:
        raise SpecError(
            f"layer {layer} has an MLP after the attention, whose inverse is unknown; remove it "
            'with network.without("mlp"), or use parallel=True.'
        )
    step: Step = block.steps[0]
    batch = x.unsqueeze(0)
    total = norm_preimage(step.after, x, c=c) - step.skip * x
    for branch in step.branches:
        if branch.part is not block.attention:
            total = total - branch(batch, seen)[0]
    attending = next(branch for branch in step.branches if branch.part is block.attention)
    target = norm_preimage(attending.inside, total)
    _set_values(block.attention, attending.before(batch), target, seen, layer)


def _set_values(
    attention: Attention, z: Hidden, target: Rows, seen: Visibility, layer: int
) -> None:
    features = z.shape[-1]
    width = attention.output.weight.shape[1] // attention.heads
    if width >= features:
        identity = torch.eye(width, features, dtype=z.dtype, device=z.device)
        biased = attention.value.bias is not None
        attention.value = make_linear(
            identity.repeat(attention.kv_heads, 1),
            z.new_zeros(attention.kv_heads * width) if biased else None,
        )
    # The input of the output projection: the mixed values of all heads, side by side.
    pattern = attention.mixing(z, seen)[0]
    values = attention.value(z)[0].unflatten(-1, (attention.kv_heads, -1)).transpose(0, 1)
    by_head = pattern @ values.repeat_interleave(attention.heads // attention.kv_heads, 0)
    by_head[list(attention.removed)] = 0.0
    mixed = by_head.transpose(0, 1).flatten(1)
    gates = attention.gates(z)
    mixed = mixed if gates is None else mixed * gates[0]
    _check_solvable(mixed, pattern, z[0], layer)
    bias = attention.output.bias
    goal = target if bias is None else target - bias
    # gelsd: the solution of least norm; the default driver wants full column rank.
    output = torch.linalg.lstsq(mixed.cpu(), goal.cpu(), driver="gelsd").solution.to(z.device)
    attention.output = make_linear(output.T, bias)


def _check_solvable(
    mixed: Float[Tensor, "token inner"],
    pattern: Float[Tensor, "head query key"],
    z: Rows,
    layer: int,
) -> None:
    tokens, inner = mixed.shape
    sigma = torch.linalg.svdvals(mixed)
    first, last = float(sigma[0]), float(sigma[-1]) if inner >= tokens else 0.0
    condition = first / last if last > 0 else float("inf")
    if condition < 1e-4 / torch.finfo(mixed.dtype).eps:
        return
    patterns = [short(number, digits=2) for number in torch.linalg.cond(pattern).tolist()]
    raise InputError(
        f"layer {layer}: the mixed values of {tokens} tokens have condition number "
        f"{short(condition, digits=2)} ({inner} columns; x has rank {int(numerical_rank(z))}, the "
        f"attention matrices condition numbers {', '.join(patterns)}), so not every "
        "target can be reached. Use tokens of full row rank, no more of them than "
        "heads × head_width, and attention that is invertible (a causal mask always is)."
    )


def _check_scale(c: float | Tensor | None, x: Tensor) -> Tensor | None:
    """One positive number for each token, as a column."""
    if c is None:
        return None
    if isinstance(c, Tensor) and c.is_complex():
        raise KindError(f"c has dtype {c.dtype}, expected real numbers.")
    scale = torch.as_tensor(c, dtype=x.dtype, device=x.device)
    if scale.ndim > 1 or (scale.ndim == 1 and len(scale) != x.shape[-2]):
        raise ShapeError(
            f"c has shape {tuple(scale.shape)}, expected one number for each of "
            f"{x.shape[-2]} tokens."
        )
    if not bool(((scale > 0) & torch.isfinite(scale)).all()):
        raise InputError(f"c={c} is out of range; a norm undoes finite scales > 0 only.")
    return scale.expand(x.shape[-2]).unsqueeze(-1)
