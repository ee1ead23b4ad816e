"""Formulas of your own, for `perfgrid COMMAND STUDY --formulas studies/step_price.py`: docs/study.md."""

import perfgrid as pg


@pg.formula(unit="USD", source="our price list")
def step_price(step_time, devices):
    """Price of a step at 2.50 USD per device-hour."""
    return step_time * devices * (2.5 / 3600.0)


@pg.constraint(kind="exceeds", reason="a step costs more than 100 USD", source="our budget", about="step_price")
def within_budget(step_price):
    """Whether a step costs at most 100 USD."""
    return step_price <= 100.0
