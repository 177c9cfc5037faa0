return bytes(tick);
