"""The steps of a recording: from markers, or from repetition."""
