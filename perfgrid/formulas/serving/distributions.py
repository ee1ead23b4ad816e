"""Distributions by their first three moments, in elementary functions: sums and mixtures of times, and percentiles.

A time is a mean, a variance and a third central moment: those of independent times add up. Its distribution is taken
to be a lognormal one that is shifted so far that it has the three (Johnson 1949): close to the normal distribution
without skewness, and to the exponential one with skewness 2.
"""

from perfgrid.engine import xp
from perfgrid.formulas.axes import INNER, at, table

Z = {"p50": 0.0, "p90": 1.2815515655446004, "p99": 2.3263478740408408}  # of the normal distribution
LEAST_SKEWNESS = 0.05
LEAST_SPREAD = 1e-4  # standard deviation of what does not vary over its mean
BISECTIONS, STEPS = 3, 2  # of the search for a percentile
NEGLIGIBLE = 1e-3  # share of a part over that beyond a percentile, which it does not move


def normal_share(z):
    """Part of a normal distribution below z, within 1.4e-4 (Page 1977)."""
    z = xp.minimum(xp.maximum(z, -9.0), 9.0)
    return 1 / (1 + xp.exp(-z * (1.5976 + 0.070565 * z**2)))


def normal_share_slope(z, share):
    """Its slope, from the share itself."""
    return xp.where(xp.abs(z) < 9, share * (1 - share) * (1.5976 + 0.211695 * z**2), 0.0)


def normal_deviation(share):
    """Where this part of a normal distribution lies below, by the same approximation: a cubic equation in z.

    z³ + 3·a·z = 2·b has the real root 2·√a·sinh(asinh(b/√a³)/3).
    """
    odds = xp.minimum(xp.maximum(share, 1e-6), 1 - 1e-6)
    a = 1.5976 / (3 * 0.070565)
    b = xp.log(odds / (1 - odds)) / (2 * 0.070565) / a**1.5
    third = xp.exp(xp.log(xp.abs(b) + xp.sqrt(b**2 + 1)) / 3)
    return xp.where(b > 0, 1.0, -1.0) * a**0.5 * (third - 1 / third)


def normal_density(z):
    """Density of the normal distribution; far outside that at 12."""
    return 0.3989422804014327 * xp.exp(-0.5 * xp.minimum(z**2, 144.0))


def lognormal_width(skewness):
    """Width w of the lognormal distribution with this skewness, and exp(w²) - 1.

    skewness² = (x + 2)²·(x - 1) for x = exp(w²), a cubic equation with one real root.
    """
    half = xp.minimum(xp.maximum(skewness, LEAST_SKEWNESS), 100.0) ** 2 / 2
    root = xp.exp(xp.log1p(half + xp.sqrt(half * (2 + half))) / 3)
    excess = (root - 1) ** 2 / root
    return xp.sqrt(xp.log1p(excess)), excess


def scale_and_width(deviation, skewness):
    """What a lognormal distribution around 1 is multiplied by to have this deviation and skewness, and its width."""
    width, excess = lognormal_width(skewness)
    return deviation / xp.sqrt(excess), width


def at_deviation(z, mean, scale, width):
    """The value at z standard deviations of the normal distribution that is mapped to that of a time."""
    return mean + scale * (xp.exp(width * (z - width / 2)) - 1)


def deviation_of(time, mean, scale, width):
    """The other way round: the deviation of the normal distribution at a time, and its slope by the time."""
    scaled = xp.maximum(1 + (time - mean) / scale, 1e-9)
    return xp.log(scaled) / width + width / 2, 1 / (width * scale * scaled)


def share_below(time, mean, scale, width):
    """Part of the distribution below a time."""
    return normal_share(deviation_of(time, mean, scale, width)[0])


def deviation_and_skewness(mean, variance, third):
    """Standard deviation and skewness from the mean, the variance and the third central moment; both above zero."""
    square = variance + (LEAST_SPREAD * mean) ** 2
    deviation = xp.sqrt(square)
    return deviation, third / (square * deviation)


def lean(variance, third):
    """The third central moment over the variance, a time: none of what does not vary."""
    return xp.maximum(third, 0.0) / xp.where(variance > 0, variance, 1e10)


def packed(mean, variance, third):
    """Three moments in seconds along the axis `statistic`."""
    return table("statistic", mean=mean, deviation=xp.root(variance), lean=lean(variance, third))


def unpacked(spread):
    """Mean, variance and third central moment of what `packed` made."""
    mean, deviation, leaning = (at(spread, statistic=name) for name in INNER.labels["statistic"])
    return mean, deviation**2, leaning * deviation**2


def added(*times):
    """Three moments of a sum of independent times."""
    return tuple(map(sum, zip(*times, strict=True)))


def mixed(parts):
    """Mean, variance and third central moment of a mixture of (share, mean, variance, third central moment)."""
    mean = sum(share * own for share, own, _, _ in parts)
    variance = sum(share * (square + (own - mean) ** 2) for share, own, square, _ in parts)
    third = sum(share * (cube + 3 * (own - mean) * square + (own - mean) ** 3) for share, own, square, cube in parts)
    return mean, variance, third


# ---- answers of different lengths -----------------------------------------------------------------------------------


def answer(each, once, varying=0.0, spread_each=0.0, spread_once=0.0, skew_each=0.0, skew_once=0.0):
    """The time of an answer along the axis `piece`: that of r times the mean length takes each·r + once on average.

    Its variance is varying·r² + spread_each·r + spread_once, its third central moment skew_each·r + skew_once.
    """
    nothing = 0.0 * each
    squares = [square + nothing * each for square in (varying, spread_each, spread_once)]
    cubes = [cube + nothing * each**2 for cube in (skew_each, skew_once)]
    leans = [lean(square, cube) for square, cube in zip(squares[1:], cubes, strict=True)]
    values = [each, once + nothing, *map(xp.root, squares), *leans]
    return table("piece", **dict(zip(INNER.labels["piece"], values, strict=True)))


def pieces(answer_time):
    """The two means, three variances and two third moments of what `answer` made."""
    each, once, *roots, lean_each, lean_once = (at(answer_time, piece=name) for name in INNER.labels["piece"])
    varying, spread_each, spread_once = (root**2 for root in roots)
    return each, once, varying, spread_each, spread_once, lean_each * spread_each, lean_once * spread_once


def of_all_lengths(answer_time, answer_moment):
    """Mean, variance and third central moment of the time of answers of all lengths."""
    each, once, varying, spread_each, spread_once, skew_each, skew_once = pieces(answer_time)
    second, third = (at(answer_moment, power=name) for name in ("second", "third"))
    variance = varying * second + spread_each + spread_once + each**2 * (second - 1)
    joint = spread_each * (second - 1) + varying * (third - second)
    return each + once, variance, skew_each + skew_once + 3 * each * joint + each**3 * (third - 3 * second + 2)


def of_each_token(answer_time, answer_moment):
    """The same of the time of an answer over its length in mean lengths."""
    each, once, varying, spread_each, spread_once, skew_each, skew_once = pieces(answer_time)
    one, two, three = (at(answer_moment, power=name) for name in ("inverse", "inverse_second", "inverse_third"))
    variance = varying + spread_each * one + spread_once * two + once**2 * (two - one**2)
    joint = spread_each * (two - one**2) + spread_once * (three - one * two)
    skew = skew_each * two + skew_once * three + once**3 * (three - 3 * one * two + 2 * one**3)
    return each + once * one, variance, skew + 3 * once * joint


# ---- mixtures -------------------------------------------------------------------------------------------------------


def mean_of(parts):
    """Mean of a mixture of (share, mean, scale, width)."""
    return sum(share * mean for share, mean, *_ in parts)


def share_of_mixture(time, parts):
    """Part of a mixture of (share, mean, scale, width) below a time."""
    return sum(share * share_below(time, *part) for share, *part in parts)


def share_and_density(time, parts):
    """The same, and the density there."""
    below = density = 0.0
    for share, *part in parts:
        z, slope = deviation_of(time, *part)
        own = normal_share(z)
        below, density = below + share * own, density + share * normal_share_slope(z, own) * slope
    return below, density


def percentile_of_mixture(z, parts):
    """The time below which the normal distribution's part at z of a mixture lies.

    It is between the least and the greatest of the same percentiles of all parts that matter there: bisection of their
    ratio, then steps by Newton's rule on the logarithms of the time and of the odds, which give the derivatives.
    """
    wanted = normal_share(z)
    own = [at_deviation(z, *part) for _, *part in parts]
    low = high = sum(share * one for (share, *_), one in zip(parts, own, strict=True))
    for (share, *_), one in zip(parts, own, strict=True):
        matters = share > NEGLIGIBLE * (1 - wanted)
        low = xp.where(matters, xp.minimum(low, one), low)
        high = xp.where(matters, xp.maximum(high, one), high)
    least = 1e-6 * mean_of(parts)  # a shifted lognormal distribution reaches below zero, a time does not
    low, high = xp.maximum(low * (1 - 1e-4), least), xp.maximum(high * (1 + 1e-4), 2 * least)
    for _ in range(BISECTIONS):
        middle = xp.sqrt(low * high)
        short = share_of_mixture(middle, parts) < wanted
        low, high = xp.where(short, middle, low), xp.where(short, high, middle)
    time, odds = xp.sqrt(low * high), wanted / (1 - wanted)
    for _ in range(STEPS):
        found, density = share_and_density(time, parts)
        found = xp.minimum(xp.maximum(found, 1e-6), 1 - 1e-6)
        low, high = xp.where(found < wanted, time, low), xp.where(found < wanted, high, time)
        step = xp.log(odds * (1 - found) / found) * found * (1 - found) / xp.maximum(density * time, 1e-12)
        time = xp.minimum(xp.maximum(time * xp.exp(xp.minimum(xp.maximum(step, -9.0), 9.0)), low), high)
    return time
