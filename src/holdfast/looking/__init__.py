"""Looking at runs and acting on them, for every face: the desk."""

from holdfast.looking.desk import Desk as Desk
from holdfast.looking.local import LocalDesk as LocalDesk
