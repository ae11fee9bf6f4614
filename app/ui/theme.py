"""Gradio theme made of the design tokens in ``shared/tokens.css``, and the stylesheets of the chat page."""

from __future__ import annotations

import gradio as gr

from app.ui.static_files import FILES_URL

#: Stylesheets for components of ours in any Gradio app, in cascade order: a later one overrides an earlier one.
SHARED_STYLES = ("shared/tokens.css", "shared/icons.css", "shared/controls.css", "shared/popover.css")
#: Stylesheets of the chat page, in cascade order.
STYLES = (
    *SHARED_STYLES,
    "shared/base.css",
    "pages/chat/layout.css",
    "pages/chat/case_dialogs.css",
    "pages/chat/palette.css",
    "components/conversations/conversations.css",
    "components/chat/chat.css",
    "components/chat/markdown.css",
    "components/chat/citations.css",
    "components/chat/tool_cards.css",
    "components/chat/welcome.css",
    "components/chat/feedback.css",
    "components/chat/lens.css",
    "components/chat/comparison.css",
    "components/chat/reply_timing.css",
    "components/chat/attached.css",
    "pages/chat/compare_dialog.css",
    "components/composer/composer.css",
    "pages/chat/context_bar.css",
    "pages/chat/draft_panel.css",
    "pages/chat/source_viewer.css",
    "components/settings/settings.css",
    "components/model/model.css",
    "components/model_menu/model_menu.css",
    "components/header/header.css",
)
#: All of them as one, below ``FILES_URL``.
PAGE_STYLE = "chat_page.css"
HEAD = "\n".join(
    [
        '<meta name="color-scheme" content="light dark">',
        f'<link rel="stylesheet" href="{FILES_URL}/{PAGE_STYLE}">',
    ]
)

#: Gradio's variables, without those of buttons: https://www.gradio.app/guides/theming-guide
_VALUES = {
    "body_background_fill": "var(--dm-paper)",
    "body_text_color": "var(--dm-text)",
    "body_text_color_subdued": "var(--dm-muted)",
    "background_fill_primary": "var(--dm-raised)",
    "background_fill_secondary": "var(--dm-hover)",
    "border_color_primary": "var(--dm-line-strong)",
    "border_color_accent": "var(--dm-accent)",
    "color_accent": "var(--dm-accent)",
    "color_accent_soft": "var(--dm-accent-tint)",
    "link_text_color": "var(--dm-accent)",
    "link_text_color_hover": "var(--dm-accent-hover)",
    "shadow_drop_lg": "var(--dm-shadow-raised)",
    "block_background_fill": "transparent",
    "block_border_width": "0px",
    "block_shadow": "none",
    "block_padding": "0px",
    "block_title_text_color": "var(--dm-text)",
    "block_title_text_size": "var(--dm-size-label)",
    "block_title_text_weight": "var(--dm-bold)",
    "block_info_text_color": "var(--dm-muted)",
    "block_info_text_size": "var(--dm-size-hint)",
    "container_radius": "var(--dm-radius-large)",
    "form_gap_width": "0px",
    "layout_gap": "0px",
    "input_background_fill": "var(--dm-raised)",
    "input_background_fill_focus": "var(--dm-raised)",
    "input_border_color": "var(--dm-line-strong)",
    "input_border_color_focus": "var(--dm-accent)",
    "input_border_width": "1px",
    "input_padding": "0.4375rem var(--dm-space-3)",
    "input_placeholder_color": "var(--dm-placeholder)",
    "input_radius": "var(--dm-radius)",
    "input_shadow": "none",
    "input_shadow_focus": "none",
    "input_text_size": "var(--dm-size-field)",
    "slider_color": "var(--dm-accent)",
    "checkbox_background_color": "var(--dm-raised)",
    "checkbox_background_color_selected": "var(--dm-accent)",
    "checkbox_border_color": "var(--dm-line-strong)",
    "checkbox_border_color_focus": "var(--dm-accent)",
    "checkbox_border_color_selected": "var(--dm-accent)",
    "checkbox_border_radius": "50%",
    "checkbox_label_background_fill": "transparent",
    "checkbox_label_background_fill_hover": "var(--dm-hover)",
    "checkbox_label_background_fill_selected": "var(--dm-accent-tint)",
    "checkbox_label_border_color": "var(--dm-line-button)",
    "checkbox_label_border_color_selected": "var(--dm-accent)",
    "checkbox_label_border_width": "1px",
    "checkbox_label_padding": "0.375rem 0.625rem",
    "checkbox_label_text_color": "var(--dm-text)",
    "checkbox_label_text_color_selected": "var(--dm-text)",
    "checkbox_label_text_size": "var(--dm-size-label)",
    "button_border_width": "1px",
    "button_large_padding": "var(--dm-space-1) var(--dm-space-4)",
    "button_large_radius": "var(--dm-radius)",
    "button_large_text_size": "var(--dm-size-control)",
    "button_large_text_weight": "var(--dm-bold)",
}


def page_theme() -> gr.themes.Base:
    """Return Gradio's base theme with the tokens' colours, the same for Gradio's light and dark mode.

    The tokens themselves differ between the modes. Without web fonts, the page loads nothing from another origin.
    """
    theme = gr.themes.Base(font=["var(--dm-sans)"], font_mono=["var(--dm-mono)"])
    values = {**_VALUES, **_button_values("primary", "transparent", "accent", "accent-hover", "on-accent")}
    values |= _button_values("secondary", "var(--dm-line-button)", "raised", "tint", "text")
    dark = {f"{name}_dark": value for name, value in values.items()}
    return theme.set(**values, **{name: value for name, value in dark.items() if hasattr(theme, name)})


def _button_values(variant: str, border: str, fill: str, fill_hover: str, text: str) -> dict[str, str]:
    return {
        f"button_{variant}_background_fill": f"var(--dm-{fill})",
        f"button_{variant}_background_fill_hover": f"var(--dm-{fill_hover})",
        f"button_{variant}_border_color": border,
        f"button_{variant}_border_color_hover": border,
        f"button_{variant}_text_color": f"var(--dm-{text})",
        f"button_{variant}_text_color_hover": f"var(--dm-{text})",
    }
