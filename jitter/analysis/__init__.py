"""From a lake to a diagnosis: metrics, execution, replay, detection, diagnosis."""
