"""The door for clients of Apache RocketMQ: its remoting protocol, in front of the same service as HTTP."""
