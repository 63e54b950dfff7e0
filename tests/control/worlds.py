"""The worlds that the controller is tried in."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from wager.bench.simulate import Simulation
from wager.bench.worlds import (
    DEVICES,
    H100,
    TWO_CORES,
    Device,
    World,
    always,
    drift,
    flip,
    mixed,
    never,
    steady,
    trap,
)
from wager.engine.control.base import StepResult, StepView

RULES = {
    "never": never,
    "always": always,
    **{f"flip {n}": flip(n) for n in (5, 20, 60, 200, 500)},
    "trap": trap(6, 300),
    "drift": drift(400),
    "edit": steady((0.9, 0.93, 0.95), 0.83),
    "chat": steady((0.5, 0.6), 0.5),
    "rare": steady((0.9,), 0.05),
    "mixed": mixed((always, never, steady((0.6,)))),
}


def burst(at: int) -> int:
    """1 to 256 requests, every 150 steps another number."""
    return Random(at // 150).choice((1, 2, 4, 16, 64, 256))


def clock_drop(device: Device):  # type: ignore[no-untyped-def]
    """15 % slower for every second 700 steps."""
    slow = device.scaled(1.15)
    return lambda at: slow if (at // 700) % 2 else device


def world(name: str, device: Device, clients=1, factor: float = 1.0, **more) -> World:  # type: ignore[no-untyped-def]
    """``factor``: how much longer verify rows take than the controller is told."""
    true = device
    if factor != 1.0:
        first = device.rows[1]
        rows = {r: first + (ms - first) * factor for r, ms in device.rows.items()}
        true = Device(device.name, rows, device.read, device.attend * factor)
    more["clients"] = clients if callable(clients) else lambda at: clients
    more.setdefault("true", lambda at: true)
    return World(name=name, told=device, rule=RULES[name], **more)


def paused_look(simulation: Simulation, ms: float) -> None:
    """One step, in which the machine pauses while drafts are looked for."""
    settle = simulation.controller.settle

    def paused(step: StepView, result: StepResult) -> None:
        settle(step, replace(result, betting=result.betting + ms))

    simulation.controller.settle = paused  # type: ignore[method-assign]
    simulation.run(1)
    simulation.controller.settle = settle  # type: ignore[method-assign]


__all__ = ["DEVICES", "H100", "RULES", "TWO_CORES", "burst", "clock_drop", "paused_look", "world"]
