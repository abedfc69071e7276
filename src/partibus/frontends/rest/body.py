"""Bodies of requests, bounded."""

from starlette.requests import Request


class BodyTooLarge(Exception):
    """More came than a request of this kind may have; the rest was not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.bytes_max = bytes_max

    def __str__(self) -> str:
        return f"The body has more than {self.bytes_max} bytes, which is the most that this request may have."


async def read_body(request: Request, bytes_max: int) -> bytes:
    """All of it. `BodyTooLarge`; starlette's ``ClientDisconnect`` when the client leaves meanwhile."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > bytes_max:
        raise BodyTooLarge(bytes_max)
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > bytes_max:
            raise BodyTooLarge(bytes_max)
    return bytes(received)
