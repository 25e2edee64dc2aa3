"""The frame that all widgets share: controls, one picture, one line of words; a still picture where no front end is.

A widget is three plain functions of the controls' values: draw (the picture), words (the same for a screen reader),
and still (one picture that shows everything at once). The frame joins them to sliders. Sliders take the arrow keys.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import lru_cache
from html import escape

import ipywidgets

from course_lib.timeline.picture import Picture


class Stage:
    """Show it as the value of a cell.

    controls: name -> ipywidgets control; the functions get the controls' values by these names. Values are hashable.
    draw(**values): the picture. words(**values): one line that says the same. still(): the picture for a page without
    a kernel. limits(**values), if given: name -> largest value, for sliders whose range hangs on another control.

    A change is drawn before the call that made it returns, so the picture never lags behind the controls: the front
    end holds a slider's next value back until the kernel has dealt with the last one. Pictures are kept, so going
    back to one costs nothing.
    """

    def __init__(
        self,
        name: str,
        controls: dict[str, ipywidgets.ValueWidget],
        draw: Callable[..., Picture],
        words: Callable[..., str],
        still: Callable[[], Picture],
        limits: Callable[..., dict[str, int]] | None = None,
    ) -> None:
        self.name, self.controls, self.words, self.still = name, controls, words, still
        self._limits, self._settling = limits, False
        self._draw = lru_cache(maxsize=128)(lambda **values: _drawn(draw(**values)))
        self.image = ipywidgets.Image(format="png")
        self.image.layout.max_width = "100%"
        self.caption = ipywidgets.HTML()
        self.view = ipywidgets.VBox([ipywidgets.HBox(list(controls.values())), self.image, self.caption])
        self.view.children[0].layout.flex_flow = "row wrap"
        for control in controls.values():
            control.observe(self._changed, names="value")
        self._redraw()

    @property
    def values(self) -> dict:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    def _changed(self, _change: dict) -> None:
        if self._settling:
            return
        if self._limits:
            # A slider that is cut back reports a change itself. Half-settled values must not be drawn.
            self._settling = True
            try:
                for name, largest in self._limits(**self.values).items():
                    self.controls[name].max = largest
            finally:
                self._settling = False
        self._redraw()

    def _redraw(self) -> None:
        png, width = self._draw(**self.values)
        self.image.value = png
        self.image.layout.width = f"{width}px"
        self.caption.value = f'<div role="status" aria-live="polite">{escape(self.words(**self.values))}</div>'

    def __repr__(self) -> str:
        return f"{self.name}. {self.words(**self.values)}"

    def _repr_mimebundle_(self, **_kwargs) -> tuple[dict, dict]:
        """Both at once: a front end with a kernel shows the widget, everything else the still picture."""
        picture = self.still()
        width, height = picture.size()
        view = self.view._repr_mimebundle_()
        bundle = {**view, "text/plain": repr(self), "image/png": base64.b64encode(picture.png()).decode()}
        return bundle, {"image/png": {"width": width, "height": height}}


def _drawn(picture: Picture) -> tuple[bytes, int]:
    return picture.png(), picture.size()[0]


def slider(kind: type[ipywidgets.ValueWidget], label: str, value: float, **limits) -> ipywidgets.ValueWidget:
    """A slider that tells its value while it is dragged, with room for its label."""
    return kind(
        value=value,
        description=label,
        continuous_update=True,
        style={"description_width": "initial"},
        layout={"width": "290px"},
        **limits,
    )
