"""Plain English paragraphs about ordinary places, made from sentence patterns.

The patterns of a topic can be told in any order and each slot has many fillers, so that every seed
gives another text that reads naturally and has no long repeats inside.
"""

from __future__ import annotations

from random import Random
from typing import Final

_FILLERS: Final[dict[str, tuple[str, ...]]] = {
    "person": (
        "Mara", "Tobias", "Ines", "Osman", "Greta", "Callum", "Yuki", "Benedict", "Lena", "Farid",
        "Sofia", "Anders", "Priya", "Joao", "Hanne", "Viktor",
    ),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "season": ("spring", "summer", "autumn", "winter"),
    "weather": (
        "light rain", "thick fog", "a cold wind", "bright sunshine", "a late frost", "heavy snow",
    ),
    "quality": (
        "careful", "cheerful", "patient", "stubborn", "quiet", "curious", "practical", "generous",
    ),
    "colour": ("green", "dark blue", "pale yellow", "brick red", "grey", "white"),
    "place": (
        "Ashford", "Lindow", "Carrick", "Velden", "Porto Alto", "Stonebridge", "Marrow Bay",
        "Upper Wick", "Hollin", "Estuary Row",
    ),
    "reason": (
        "the old one had cracked", "nobody could agree on the price", "the council asked for it",
        "visitors kept losing their way", "the roof had begun to leak",
        "a storm had damaged the wall", "two of the helpers had moved away",
    ),
}  # fmt: skip

TOPICS: Final[dict[str, tuple[str, ...]]] = {
    "harbour": (
        "The harbour at {place} opens its gates at {hour} o'clock, even in {season}.",
        "About {number} boats tie up along the {colour} quay on a normal {day}.",
        "{person}, who has kept the ledger for {small} years, writes down every crate by hand.",
        "When {weather} comes in from the sea, the pilots wait behind the breakwater.",
        "The fish market closes early, because the buyers from {place} leave on the first train.",
        "A new crane was ordered last {season}, since {reason}.",
        "Children sit on the steps and count the gulls until the {colour} ferry returns.",
        "The {quality} harbour master still lights the lamp herself when the power fails.",
        "Repairs to the outer wall cost {number} thousand, which was less than people had feared.",
        "In the evening the water is so still that the masts seem to stand on their own heads.",
    ),
    "bakery": (
        "The bakery on the corner of {place} sells {number} loaves before {hour} in the morning.",
        "{person} mixes the dough at night and lets it rest while the street is asleep.",
        "On {day} there is a dark bread with walnuts that is gone within the hour.",
        "The oven is older than the house, and its {colour} door was painted again last {season}.",
        "A {quality} apprentice learns first to sweep, then to weigh, and only then to bake.",
        "Flour arrives from {place} every {small} days in sacks that two people have to carry.",
        "They stopped making the almond cake for a while, because {reason}.",
        "During {weather} the queue moves inside and the windows turn white with steam.",
        "Regular customers pay at the end of the week and never ask for a receipt.",
        "What is left in the evening goes to the shelter behind the station.",
    ),
    "railway": (
        "The branch line between {place} and {place} was built for stone and now carries people.",
        "Each morning {small} trains stop at the halt, although the timetable promises one more.",
        "{person} has driven the route since the {season} in which the tunnel was widened.",
        "The signal box is painted {colour}, and a {quality} volunteer keeps flowers beside it.",
        "Passengers complain on {day}, when the last carriage is always full.",
        "In {weather} the driver slows down before the viaduct and sounds the horn twice.",
        "A second track was planned, then dropped, because {reason}.",
        "Tickets cost {number} cents per kilometre, which has not changed for a long time.",
        "From the left side of the train you can see the reservoir and, far behind it, the hills.",
        "The waiting room has a stove, a map and {small} chairs that do not match.",
    ),
    "library": (
        "The library of {place} lends {number} books on an average {day}.",
        "{person} began there as a student and now looks after the maps.",
        "The reading room faces north, so that the {colour} curtains are hardly ever drawn.",
        "Most of the letters in the archive were given by families who had run out of space.",
        "A {quality} reader once returned a novel after {number} weeks and paid the fine in coins.",
        "The catalogue was moved to a new system last {season}, since {reason}.",
        "On days with {weather} the tables fill up before {hour} in the morning.",
        "School classes visit every {small} weeks and are allowed to stamp their own cards.",
        "The oldest volume describes a journey from {place} to the coast and back.",
        "Nothing is more welcome there than somebody who puts a book back in the right place.",
    ),
    "garden": (
        "The shared garden behind {place} has {number} narrow beds and one long path.",
        "{person} grows beans along the fence, where the soil is dry until late {season}.",
        "Water comes from a {colour} tank that fills whenever there is {weather}.",
        "Everyone works {small} hours a month, and a {quality} neighbour keeps the list.",
        "The compost is turned on {day}, and whoever comes late brings the coffee.",
        "They moved the tool shed to the other end, because {reason}.",
        "A hedgehog lives under the boards and is fed more often than the rules allow.",
        "Seeds are swapped with the group in {place}, which has better luck with tomatoes.",
        "Last year the pumpkins weighed {number} kilograms together, a record that will stand.",
        "At {hour} o'clock the gate is locked, but the key hangs where everybody can find it.",
    ),
    "observatory": (
        "The small observatory above {place} opens to the public every second {day}.",
        "{person} points the telescope by hand and explains what the eye will see first.",
        "With {weather} in the forecast, the dome stays shut and the talk moves to the hall.",
        "The mirror is {number} centimetres wide and was polished by a {quality} retired teacher.",
        "In {season} the nights are long enough for {small} groups, one after the other.",
        "A {colour} lamp is the only light allowed, so that nobody loses their night vision.",
        "The road was closed for some months, because {reason}.",
        "Students from {place} measure how the brightness of one star changes over the year.",
        "Around {hour} the town below switches off its signs and the sky grows deeper.",
        "Visitors often whisper, as if the planets could hear them.",
    ),
    "workshop": (
        "The bicycle workshop in {place} repairs about {number} wheels in a busy week.",
        "{person} sorts the spokes by length and keeps them in {colour} tins.",
        "Customers may use the stand in the back for free on {day}, if they clean up afterwards.",
        "A {quality} mechanic can hear a loose bearing before the bicycle has come to a stop.",
        "After {weather} the brakes are what people complain about most.",
        "Frames come from {place} and are painted in the shop at the end of {season}.",
        "They raised the price of a full service once in {small} years, because {reason}.",
        "The radio plays until {hour}, and then the only sound is the chain running through oil.",
        "Old tyres are cut into strips that hold the young trees along the canal.",
        "A bell hangs on the door, though everyone who enters calls out anyway.",
    ),
    "clinic": (
        "The animal clinic near {place} sees {number} patients on an ordinary {day}.",
        "{person} takes the calls, and a {quality} nurse decides who cannot wait.",
        "Farmers ring before {hour} in the morning, when the roads are still empty.",
        "In {season} most visits are about ticks, thorns and things that should not be eaten.",
        "The waiting room was divided in two, because {reason}.",
        "A {colour} van with the larger instruments drives to {place} every {small} days.",
        "During {weather} the vet stays overnight rather than risk the mountain road.",
        "Bills can be paid in parts, and now and then one is paid with a basket of eggs.",
        "The parrot of the former owner still greets everyone who comes in.",
        "Nobody there has ever laughed at a worried question about a hamster.",
    ),
}  # fmt: skip


def fill(pattern: str, rng: Random) -> str:
    """One sentence from a pattern; the same word is not used twice in it."""
    used: set[str] = set()
    out = pattern
    while "{" in out:
        start, end = out.index("{"), out.index("}")
        word = _filler(out[start + 1 : end], rng)
        if word in used:
            continue
        used.add(word)
        out = out[:start] + word + out[end + 1 :]
    return out[0].upper() + out[1:]


def _filler(slot: str, rng: Random) -> str:
    if slot == "number":
        return str(rng.randint(12, 480))
    if slot == "small":
        return str(rng.randint(2, 9))
    if slot == "hour":
        return str(rng.randint(5, 11))
    return rng.choice(_FILLERS[slot])


def paragraph(rng: Random, sentences: int, topic: str | None = None) -> str:
    """A paragraph of at most ten different sentences about one topic."""
    patterns = TOPICS[topic if topic is not None else rng.choice(sorted(TOPICS))]
    return " ".join(fill(p, rng) for p in rng.sample(patterns, min(sentences, len(patterns))))


def article(rng: Random, paragraphs: int, sentences: int) -> str:
    """Several paragraphs, each about another topic as long as topics last."""
    topics = rng.sample(sorted(TOPICS), len(TOPICS))
    return "\n\n".join(
        paragraph(rng, sentences, topics[i % len(topics)]) for i in range(paragraphs)
    )
