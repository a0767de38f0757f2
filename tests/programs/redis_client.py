"""A client of redis on a bare socket: pipelined commands, replies parsed by hand."""
import socket
import time


class RedisError(Exception):
    pass


def encode(*words):
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        word = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


class Client:
    def __init__(self, port, timeout=600):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.buffer = b""
        self.at = 0

    def _more(self):
        data = self.socket.recv(1 << 18)
        if not data:
            raise RedisError("the connection was closed")
        self.buffer = self.buffer[self.at:] + data
        self.at = 0

    def _line(self):
        while (end := self.buffer.find(b"\r\n", self.at)) < 0:
            self._more()
        line = self.buffer[self.at:end]
        self.at = end + 2
        return line

    def reply(self):
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            length = int(rest)
            if length < 0:
                return None
            while len(self.buffer) - self.at < length + 2:
                self._more()
            value = self.buffer[self.at:self.at + length]
            self.at += length + 2
            return value
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        raise RedisError(f"a reply begins with {line[:20]!r}")

    def call(self, *words):
        self.socket.sendall(encode(*words))
        return self.reply()

    def pipeline(self, commands, batch=256):
        """Replies to many commands, in order; each command is a tuple of words."""
        waiting = []
        for command in commands:
            waiting.append(encode(*command))
            if len(waiting) == batch:
                self.socket.sendall(b"".join(waiting))
                for _ in waiting:
                    yield self.reply()
                waiting = []
        self.socket.sendall(b"".join(waiting))
        for _ in waiting:
            yield self.reply()

    def info(self, section):
        text = self.call("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)

    def close(self):
        self.socket.close()


def connect(port, seconds=120):
    """Waits until a server answers."""
    begin = time.monotonic()
    while True:
        try:
            client = Client(port)
            client.call("PING")
            return client
        except (OSError, RedisError) as error:
            if time.monotonic() - begin > seconds:
                raise RedisError(f"no server on port {port}: {error}") from None
            time.sleep(0.05)
