"""The words of the small English: who and what can hold a fact, and which values there are.

Every word is meant to be one token. A value belongs to one kind only, and no filler uses it, so
that reading a value in a text always means reading a fact.
"""

PEOPLE = tuple(
    "Anna Ben Clara David Emma Frank Grace Henry Iris Jacob Laura Mark Nina Oscar Paul Rosa".split()
)

TOWNS = tuple("Oslo Rome Paris Lima Cairo Delhi Tokyo Bern".split())
PETS = tuple("dog cat hen goat horse duck mouse frog".split())
SOUNDS = tuple("barks purrs clucks climbs neighs quacks squeaks croaks".split())
COLOURS = tuple("red blue green white black brown yellow grey".split())
TRADES = tuple("baker smith tailor farmer sailor potter weaver miller".split())
MATERIALS = tuple("bread iron cloth wheat sails clay wool flour".split())
FOODS = tuple("apples plums beans cheese carrots honey soup rice".split())
INSTRUMENTS = tuple("flute drum harp violin piano trumpet guitar horn".split())
NUMBERS = tuple("seven eight nine ten eleven twelve twenty thirty".split())
VEHICLES = tuple("train boat cart bus bicycle tram sledge coach".split())
DAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
ROOMS = tuple("kitchen attic cellar bedroom hall garage study pantry".split())
GOODS = tuple("nails buttons coins seeds shells beads marbles ropes".split())

LEADS = tuple(
    """
As before|As everybody knows|In the end|Of course|To be sure|Once more|As we heard|In fact|
Again|It seems|By the way|Today|For some time|Even now|As the neighbours say|Without a doubt|
As the old book says|After lunch|In those years|According to the list
""".replace("\n", "").split("|")
)

ADJECTIVES = tuple(
    """
old new small large quiet noisy warm cold bright dark narrow wide clean dusty empty busy heavy
light soft hard early late long short deep tall young kind proud calm gentle brave clever lazy
lonely happy sad tired rich poor strange famous broken hidden open closed wooden golden silver
""".split()
)

SCENES = tuple(
    """
bridge river road garden market church school tower field forest mountain lake harbour castle
village square corner street valley island beach farm mill well gate fence wall roof window door
path hill meadow station library theatre museum bakery
""".split()
)

CREATURES = tuple(
    """
teacher doctor child girl boy woman man king queen soldier stranger visitor neighbour uncle aunt
cousin grandmother grandfather guest driver judge poet nurse cook clerk guard hunter shepherd
""".split()
)

DEEDS = tuple(
    """
waited slept laughed walked sang rested smiled stood danced worked read wrote listened cried
shouted whispered stopped returned arrived stayed dreamed
""".split()
)

TIMES = tuple(
    """
in the morning|in the evening|at night|at noon|in spring|in summer|in autumn|in winter|all day|
for an hour|since dawn|until midnight|during the storm|after the rain|before supper|every week|
once a year|long ago
""".replace("\n", "").split("|")
)

WEATHER = tuple("rained snowed thundered".split())
