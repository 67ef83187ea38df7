"""Both sides: images that a program attaches to its result, recognized by their bytes."""

import base64
import binascii

MAX_IMAGES = 8
MAX_IMAGE_BYTES = 3 << 20
MAX_IMAGES_BYTES = 6 << 20
"""Of one program: the number of images, the bytes of one, and of all together."""

MAX_IMAGE_CHARS, MAX_IMAGES_CHARS = MAX_IMAGE_BYTES // 3 * 4, MAX_IMAGES_BYTES // 3 * 4
"""The same in base64; the prelude has these numbers too."""


def media_type(data: str | bytes) -> str:
    """Returns the type of an image in base64; empty if it is none, or too large.

    The bytes decide, because a type that a program or a server claims may be wrong.
    """
    if len(data) > MAX_IMAGE_CHARS:
        return ""
    try:
        start = base64.b64decode(data, validate=True)[:16]
    except (binascii.Error, ValueError):
        return ""
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if start.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if start.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if start[:4] == b"RIFF" and start[8:12] == b"WEBP" else ""
