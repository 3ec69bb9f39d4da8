"""What a model is told beside the answers to its calls, when its last message was not what the loop can go on with."""

from __future__ import annotations

from activities.model_turn import Nudge

_TEXTS = {
    Nudge.NONE: "",
    Nudge.USE_A_TOOL: (
        "You called no tool, so nothing has happened: nobody reads what is only said. Make the next call now. If your "
        "work is done, hand it in with the tool that ends this conversation."
    ),
    Nudge.HAND_IN: (
        "Only a few steps are left, and what is not handed in is lost. Start nothing new. Put back the best state that "
        "you have, note what you learnt, and hand in with the tool that ends this conversation."
    ),
    Nudge.TRUNCATED: (
        "Your last message was cut off because it was too long, so none of its calls was run. Take a smaller step: "
        "think less, edit one part instead of writing the whole file, one call in a message."
    ),
    Nudge.NOT_RUN: (
        "Your last message ended in a way that is not known here, so none of its calls was run. Make the next call "
        "again."
    ),
}


def text(nudge: Nudge) -> str:
    """The words for a nudge; nothing for none."""
    return _TEXTS[nudge]
