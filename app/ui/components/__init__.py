"""Gradio components: each folder is one, whole: its class, template, script and style."""

from app.ui.components.chat.chat import Chat
from app.ui.components.composer.composer import Composer
from app.ui.components.conversations.conversations import Conversations
from app.ui.components.header.header import Header
from app.ui.components.model.model import Model
from app.ui.components.model_menu.model_menu import ModelMenu
from app.ui.components.settings.settings import Settings

__all__ = ["Chat", "Composer", "Conversations", "Header", "Model", "ModelMenu", "Settings"]
