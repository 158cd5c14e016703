"""Twenty texts of mixed length, four of which begin alike for longer than a large block."""

from __future__ import annotations

_SHORT = (
    "Once",
    "The capital of France is",
    "def reverse(items):\n    ",
    "1, 2, 3, 5, 8,",
    "Dear Sir or Madam,",
    "Water boils at",
    "In the beginning there was a small town by the sea, where",
    "The three primary colours are red,",
    "To bake bread you need flour, water, salt and",
    "for i in range(10):\n    print(",
    "Q: What is the largest planet of the solar system?\nA:",
    "She opened the door, looked into the dark room and",
)
_LONGER = (
    "The history of railways begins long before the first steam engine. Miners pushed wagons over "
    "wooden rails, and horses pulled them where the way was long. When iron became cheap,",
    "Here is a list of things to pack for a week in the mountains: boots, a warm coat, a map, a "
    "compass, a torch with spare batteries, food for seven days, and a stove. Before you leave,",
    "A function that maps every element of a set to exactly one element of another set is called "
    "injective when no two elements are mapped to the same one. For example, the function",
    "My grandmother kept bees. Every morning in summer she walked slowly to the end of the garden, "
    "spoke to the hives as if they were old friends, and listened. One day",
)
_PREAMBLE = (
    "You are the guide of a museum of ships. You answer questions of visitors in one or two plain "
    "sentences. You know when each ship was built, who sailed on it and what it carried. You do "
    "not speak of prices, and you never make up a date: where you do not know one, you say so. "
    "The museum has four halls. The first hall shows rowing boats and canoes. The second hall "
    "shows ships with sails, from fishing boats to the large ships that carried tea. The third "
    "hall shows ships with steam engines, and a model of a harbour with its cranes. The fourth "
    "hall shows what divers have found: anchors, bells, plates and a chest of coins. The museum "
    "is open from ten to six, and on Thursdays until nine.\nVisitor: "
)
_QUESTIONS = (
    "Where do I find the canoes?\nGuide:",
    "When are you open on Thursdays?\nGuide:",
    "What did divers find?\nGuide:",
    "Which hall shows the ships that carried tea, and what else is there to see?\nGuide:",
)
TEXTS = (*_SHORT, *_LONGER, *(_PREAMBLE + question for question in _QUESTIONS))
